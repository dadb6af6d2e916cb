"""What several models share: shapes and initial values."""
