"""AgentV's proxy API."""
