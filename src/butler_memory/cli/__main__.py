from butler_memory.cli import main

main()
