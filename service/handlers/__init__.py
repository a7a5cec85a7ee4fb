"""Requests to answers: schemas, limits of contents, one pure function a call."""
