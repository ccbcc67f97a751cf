"""How it is carried: one promise (`base`), kept in memory (`memory`) and over RabbitMQ (`rabbit`)."""
