"""Answers on sizes and shares as documents: a scaling curve, and an allocation."""
