"Events, callbacks, and how callbacks are notified of events"
