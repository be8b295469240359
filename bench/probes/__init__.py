"""One module for each thing that is measured. A probe runs in a process of its own and gives plain figures."""
