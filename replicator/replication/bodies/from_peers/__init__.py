"""Bodies and attachments from other nodes: asked for, received in parts, and prepared for writing."""
