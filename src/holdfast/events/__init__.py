"""Every durable event as a frozen type, one file for each noun, and the codec that stores them."""
