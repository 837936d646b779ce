"""Steps of the program: what ends them, who hears of it, how long they take."""
