"""The typed configuration: its shape (`schema`) and how it is loaded, overridden and explained (`load`)."""
