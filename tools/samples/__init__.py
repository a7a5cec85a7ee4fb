"""Plans and their variations, drawn for the frameworks' own parsers (scripts/check_frameworks)."""
