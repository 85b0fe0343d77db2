"""The command line. Knows every room by its front door and imports the heavy ones inside commands."""
