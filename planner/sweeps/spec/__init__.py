"""What a sweep file says, and what is wrong with it."""
