"""What follows training: a search for stationary points in float64, and solutions continued from depth to depth."""
