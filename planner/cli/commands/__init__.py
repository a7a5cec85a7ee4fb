"""What the commands do: read options, call the library, print."""
