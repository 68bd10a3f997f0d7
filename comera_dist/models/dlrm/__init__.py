"""The recommendation model DLRM."""
