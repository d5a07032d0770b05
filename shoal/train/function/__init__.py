"""Training code that Shoal does not drive step by step: functions, objectives, command lines."""
