"""The gRPC interface: planner.v1 in `planner/v1/planner.proto`, its stubs, and how they come."""
