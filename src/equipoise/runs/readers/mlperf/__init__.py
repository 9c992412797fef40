"""MLPerf Training results: logs, descriptions of systems, power logs, and how a round lays them out."""
