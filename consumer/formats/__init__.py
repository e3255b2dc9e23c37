"""Events as JSON, in the shapes that other tools' consumers already read."""
