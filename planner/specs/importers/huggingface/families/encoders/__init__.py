"""Families with an encoder, alone or before a decoder."""
