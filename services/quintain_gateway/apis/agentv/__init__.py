"""The endpoints of AgentV's proxy API."""
