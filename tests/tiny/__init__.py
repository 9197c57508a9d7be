"""Random-weight models small enough for tests."""
