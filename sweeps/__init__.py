"""What to run: sweeps, trials and packs. Pure: reads a sweep file, starts nothing."""
