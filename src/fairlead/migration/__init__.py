"""Moving sessions, off the request path: `core.migration` decides, `engines.kv_transfer` copies, this joins them."""
