"""Header, fingerprint, history and resolver, composed once for everybody."""
