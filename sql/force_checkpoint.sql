-- Writes a checkpoint now, so that none falls into a measurement.
checkpoint -- noqa: PRS
