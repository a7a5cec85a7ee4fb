"""Answers on plans over several pools as documents."""
