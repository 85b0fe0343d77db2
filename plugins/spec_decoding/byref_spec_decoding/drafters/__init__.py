"""The drafters that come with the plugin, one module each."""
