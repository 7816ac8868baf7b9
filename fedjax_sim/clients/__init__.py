"""Who takes part (``cohort``), how long and on what each works (``local``), on which devices (``systems``)."""
