"""What tests of several layers use: a wire client, brokers, roots."""
