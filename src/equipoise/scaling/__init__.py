"""What do the data say? Arrays and frames in, small records out. No files, no clock, no random source."""
