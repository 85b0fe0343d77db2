"""What a plugin's own tests may build on: suites to subclass, and drivers of single parts. Imported by tests only."""
