-- Refused by name: libipc says why.
return require('libipc').BackgroundTaskPool
