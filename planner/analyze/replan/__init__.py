"""Other devices for a running job: what now, and does moving pay?"""
