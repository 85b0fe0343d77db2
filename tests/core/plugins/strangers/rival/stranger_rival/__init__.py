"""Claims a name that another distribution has."""

raise AssertionError("an ambiguous plugin was imported")
