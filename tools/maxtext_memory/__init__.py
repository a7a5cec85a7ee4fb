"""Memory of steps of MaxText as libtpu lays them out, beside ours."""
