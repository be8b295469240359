"""Every durable event as a frozen type, one file per noun, and the codec that stores them."""
