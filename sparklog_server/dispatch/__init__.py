"""One request's way, in one place: decode, let it in, handle, encode, count."""
