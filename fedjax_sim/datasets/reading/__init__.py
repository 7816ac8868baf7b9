"""Files: where data is looked for, whether it is what it should be, and the formats it comes in."""
