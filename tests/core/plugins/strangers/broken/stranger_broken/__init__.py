"""One plugin for every way in which one can be broken."""
