"""The product to agents: tools and resources of the Model Context Protocol, on the handlers."""
