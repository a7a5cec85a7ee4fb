"""What REST and the page share of HTTP: connections, bodies, exchanges, streams of events."""
