"""What readers see: tables and plots, made from result files alone."""
