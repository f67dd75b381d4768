"""Context reuse for batches: contexts clustered, ordered and scheduled before they are sent. Source: ContextPilot."""
