"""What every test of the tree may use is in `tests/support/common_fixtures.py`."""

pytest_plugins = ("common_fixtures",)
