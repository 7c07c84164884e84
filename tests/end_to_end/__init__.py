"""Node processes, real sockets and real mail clients, seen from outside."""
