"""What edgeoutbox costs, each figure beside a yardstick of the same run."""
