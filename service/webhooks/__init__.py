"""Webhooks: where they may lead, how they are signed, what sends them and tries again."""
