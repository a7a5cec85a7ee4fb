"""Clients that programs make of docs/openapi.json: made, compiled, used."""
