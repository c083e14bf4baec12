"Save a whole run, and resume it in another process"
