"""What does theory say? Step time and memory of any strategy on any machine. Arrays in, arrays out."""
