"""The REST transport: operations, their OpenAPI document, the application."""
